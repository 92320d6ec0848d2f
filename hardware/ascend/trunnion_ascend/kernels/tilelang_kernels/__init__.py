"""A kernel in TileLang: a leaf, which nothing imports by itself.

TileLang's target `ascend` is for Ascend 950, which `trunnion_ascend.soc` does not know: this shows how far it goes.
"""
