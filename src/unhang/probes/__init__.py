"""Small torch programs that run in subprocesses, stage by stage, and what starts them."""
