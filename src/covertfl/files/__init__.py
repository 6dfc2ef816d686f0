"""How files are read and written.

- `atomic`: writing a file completely or not at all (`write_atomically`)
- `format`: format versions of covertfl's files, and `require_format`, which refuses a newer one
- `toml`: reading text and TOML, and quoting what is wrong in it
"""
