"""The example participation log that ships with covertfl."""
