"""LLaMA-Factory imports torchaudio for its audio models; the real one comes with a torch of its own."""
