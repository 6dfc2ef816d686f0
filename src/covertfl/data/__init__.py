"""Data files that ship with covertfl."""
