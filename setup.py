"""The compiled parts; everything else is in pyproject.toml."""

from setuptools import Extension, setup

FLAGS = ["-O3", "-std=c11", "-Wall", "-Wextra", "-Wno-unused-parameter"]

setup(
    ext_modules=[
        Extension(
            "covertfl.evaluation._chain",
            ["src/covertfl/evaluation/_chain.c"],
            extra_compile_args=FLAGS,
            py_limited_api=True,
        ),
        Extension(
            "covertfl.kernels._mlp",
            ["src/covertfl/kernels/_mlp.c"],
            depends=["src/covertfl/kernels/_mlp_input.h", "src/covertfl/kernels/_mlp_job.h"],
            # Products and sums are fused where the processor can; vectors never cross a call.
            extra_compile_args=[*FLAGS, "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi"],
            py_limited_api=True,
        ),
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
