"""CANN's own messages behind their codes: HCCL's (EI), its device process's (EJ), the runtime's (EE), the driver's (EL).

Texts: hcomm's err_msg.cc and runtime's error_code.json, with those of CANN 8 and earlier. The code stands before the process, `EI0008: [PID: 7]
2026-01-08-11:02:13.441.302 The ...`, or in brackets right before the text, `[PID: 7] 2026-... Incorrect_Version(EI0008): The ...`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from unhang.logs import Signature
from unhang.model import Remedy

if TYPE_CHECKING:
    from unhang.logs import Role
    from unhang.model import Standing

NPU_LINK = Remedy(
    id="npu-link",
    says="Look at the link, the optical module and the address of every NPU, and at the switch ports that they lead to.",
    says_zh="查看每个 NPU 的链路、光模块和 IP 地址，以及它们所连的交换机端口。",
    command="for i in {0..7}; do hccn_tool -i $i -link -g; hccn_tool -i $i -optical -g | grep present; hccn_tool -i $i -ip -g; done",
)


def message(needle: str, *, codes: str = r"\d{4}", standing: Standing = "likely", role: Role = "root", remedies: tuple[str, ...] = ()) -> Signature:
    """The message with these words, which say who, whom and what themselves; of `codes` only, where others have them as well."""
    text = rf"(?P<said>.{{0,160}}?{re.escape(needle)}.{{0,300}})"
    pattern = rf"\bE[A-Z]{codes}(?:: (?:\[PID: \d+\] )?(?:\d{{4}}-[\d.:-]{{1,30}} )?|\): ){text}"
    return Signature(
        needle=needle, pattern=pattern, standing=standing, role=role, says="CANN says: {said}", says_zh="CANN 报告：{said}", remedies=remedies or None
    )
