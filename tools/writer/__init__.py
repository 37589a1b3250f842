"""The parts of ``tools/train_writer.py``."""
