"""The parts of ``tools/train_eyes.py``."""
