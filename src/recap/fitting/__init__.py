"""Pairs in, a captioner out: fitting, updating, tuning, its confidence, and captions written for pictures without."""
