"""One HTML page about runs, made from their result files alone.

`write`     the page and its plots in a folder: `write_report`
`records`   the result files of a run: `RunRecords`
`audit`     the audit of runs, read from audit.json
`checks`    the keys that a report needs in those files
`measures`  waits, limits and the observed policy, computed from records
`canvas`    the common form of plots and their colours
`plots`     the plots, from arrays
`figures`   the plots with titles and captions
`cards`     rows and cards of the summary
`numbers`   the formats of numbers
`page`      the template and the settings
"""
