"""What ReCap is compared with, trained on the same pairs and encoder vectors.

``clipcap`` (Mokady et al. 2021) and ``smallcap`` (Ramos et al. 2023) need torch and transformers; ``training`` is their
common loop. Import the modules themselves: this package imports neither.
"""
