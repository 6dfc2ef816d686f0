"""How files are read and written.

- `atomic`: writing a file completely or not at all (`write_atomically`)
- `regular`: reading regular files, and refusing pipes, devices and folders (`read_bytes`)
- `format`: format versions of covertfl's files, and `require_format`, which refuses another one
- `toml`: reading text and TOML, and quoting what is wrong in it
- `json_file`: reading JSON (`read_object`)
- `tensors`: safetensors files, with a format version (`read_tensors`) or written array by array
  (`stream_tensors`)
- `compact`: lists of client numbers in a short form (`pack_clients`, `unpack_record`)
- `table`: csv, tsv and parquet files (`read_table`, `write_table`)
"""
