"""How files are read and written.

- `disk`: writing a file completely or not at all (`write_atomically`); reading regular files, and
  refusing pipes, devices and folders (`read_bytes`)
- `text`: text, TOML and JSON, quoting what is wrong in them, and their formats (`require_format`)
- `tensors`: safetensors files, with a format version (`read_tensors`) or written array by array
  (`stream_tensors`)
- `table`: csv, tsv and parquet files (`read_table`, `write_table`)
- `token`: secrets that open an interface
"""
