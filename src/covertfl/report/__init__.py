"""One HTML page about runs, made from their result files alone.

- `write`: the page with its cards, and its plots, in a folder: `write_report`
- `records`: the result files of a run, `RunRecords`, and its audit
- `measures`: waits, limits and the observed policy, computed from records
- `plots`: the plots, from arrays
- `figures`: the plots with titles and captions
- `page`: the template, the formats of numbers and the settings
"""
