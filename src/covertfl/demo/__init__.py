"""The paper's main experiment on a small scale, as one command and one page.

`run` trains and audits every condition, and writes headline, table and page: `run_demo`
"""
