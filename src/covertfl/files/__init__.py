"""How files are read and written.

`format`: the format versions of covertfl's files, and `require_format`, which refuses a newer one.
"""
