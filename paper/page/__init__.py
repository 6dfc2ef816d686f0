"""The paper's tables and figures computed again, and the page made from the results.

`run`       experiments by name: `reproduce`, `rebuild_page`
`workers`   several processes at work, on parts of experiments
`results`   result files and how each was made
`page`      the page as Markdown: `render_page`, `render_section`
`console`   the tables of a result on the console: `render_result`
`tables`    sections with tables of accuracies, and of all readings of the paper
`learners`  the section on the learner on MNIST under settings that the paper leaves open
`searches`  sections about the policy gradient and the learning cost
`theory`    the section about theorems and lemmas
`figures`   the pictures
`markdown`  Markdown tables, formats of numbers and shared names
"""
