"""A Hydra application, as it is swept over two values."""

from __future__ import annotations

import logging

import hydra
from omegaconf import DictConfig, OmegaConf


@hydra.main(version_base=None, config_path=None)
def main(config: DictConfig) -> None:
    logging.getLogger(__name__).info("config:\n%s", OmegaConf.to_yaml(config))
    logging.getLogger(__name__).warning("timeout of %s s is ignored on CPUs", config.timeout)


main()
