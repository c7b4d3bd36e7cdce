"""What lines of a kernel's log mean, and how PCI addresses are written."""

from __future__ import annotations

from unhang.kernel_lines import device_of, normal


def test_addresses_are_written_alike():
    assert normal("00000000:3B:00.0") == normal("0000:3b:00") == "0000:3b:00.0"
    assert normal("00010000:01:00.0") == "10000:01:00.0"


def test_an_address_may_lack_its_domain_or_be_none():
    assert device_of("3b:00.0") == device_of("0000:3B:00") == "0000:3b:00.0"
    assert device_of("") is device_of(None) is None
