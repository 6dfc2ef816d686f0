"""The experiments of the paper, one module per table or figure.

`run`               all experiments by name, and how they are run: `EXPERIMENTS`, `reproduce`
`experiment`        what an experiment is: `Experiment`, `Request`
`table_main`        the main experiment: Table 1 and Figure 3
`table_mnist`       the MNIST tables with 20 and 50 clients
`table_fedsgd`      MNIST with FedSGD: Table 2, left
`table_states`      MNIST with seven oracle states: Table 2, right
`random_policy`     MNIST with learning queries at random rounds
`mnist_learners`    the learner on MNIST under settings that the paper leaves open
`figure_spga`       convergence of the policy gradient: Figure 4
`figure_tracking`   the policy gradient through a change of the system
`figure_cost`       learning cost against learning queries: Figure 5
`partial_oracle`    the price of an oracle state that is read with errors
`theory`            the theorems and lemmas, measured
`theory_updates`    Theorem 1: gradient norms and their bound
`theory_structure`  Theorem 2 and Lemma 2: thresholds and monotone values
`theory_queues`     Theorem 3 and Lemma 1: mixtures of policies, and stable queues
`noisy_function`    the function with a noisy gradient that Theorem 1 is measured on
`covert_runs`       the federations of the tables, trained on the package's own round
`cells`             finished parts in files, and processes that compute them
`averages`          means and shares over seeds with their intervals
`results`           result files and how each was made
`page`              results as tables on the console and on the page, whose text is in `page.md.j2`
`pictures`          the figures
"""
