"""Tests of covertfl; the folders mirror those of the package."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
