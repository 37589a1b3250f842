"""What ReCap is compared with, trained on the same pairs and encoder vectors.

``clipcap`` (Mokady et al. 2021) and ``smallcap`` (Ramos et al. 2023) need torch and transformers; ``training`` is their
common loop, and ``systems`` brings them to the splits of an experiment, new or published. Import the modules
themselves: this package imports neither.
"""
