"""The compiled parts; everything else is in pyproject.toml."""

from setuptools import Extension, setup

FLAGS = ["-O3", "-std=c11", "-Wall", "-Wextra", "-Wno-unused-parameter"]
KERNELS = "src/covertfl/kernels"
SHARED_HEADERS = ("_jobs.h", "_run.h", "_targets.h", "_vectors.h", "_vectors_end.h")


def make_kernel(name: str, *headers: str) -> Extension:
    """Return a compiled kernel and the headers that it includes."""
    return Extension(
        f"covertfl.kernels.{name}",
        [f"{KERNELS}/{name}.c"],
        depends=[f"{KERNELS}/{header}" for header in (*headers, *SHARED_HEADERS)],
        # Products and sums are fused where the processor can; vectors never cross a call.
        extra_compile_args=[*FLAGS, "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi"],
        py_limited_api=True,
    )


setup(
    ext_modules=[
        Extension(
            "covertfl.evaluation._chain",
            ["src/covertfl/evaluation/_chain.c"],
            extra_compile_args=FLAGS,
            py_limited_api=True,
        ),
        Extension(
            "covertfl.solvers._induction",
            ["src/covertfl/solvers/_induction.c"],
            # Products and sums stay apart, so that every machine has the same results.
            extra_compile_args=[*FLAGS, "-ffp-contract=off"],
            py_limited_api=True,
        ),
        make_kernel("_mlp", "_mlp_input.h", "_mlp_job.h"),
        make_kernel("_cnn", "_cnn_input.h", "_cnn_job.h", "_cnn_pooled.h"),
        Extension(
            "covertfl.kernels._sum",
            ["src/covertfl/kernels/_sum.c"],
            # Exact sums need every operation rounded by itself.
            extra_compile_args=[*FLAGS, "-ffp-contract=off"],
            py_limited_api=True,
        ),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
