"""The paper's main experiment on a small scale, as one command and one page.

`run`   trains and audits every condition: `run_demo`
`words` the headline, and why runs end before all updates are made
`page`  the HTML page with the table and the accuracy curves
"""
