"""The compiled parts; everything else is in pyproject.toml."""

from setuptools import Extension, setup

FLAGS = ["-O3", "-std=c11", "-Wall", "-Wextra", "-Wno-unused-parameter"]

setup(
    ext_modules=[
        Extension(
            "covertfl._queue_chain",
            ["src/covertfl/_queue_chain.c"],
            extra_compile_args=FLAGS,
            py_limited_api=True,
        ),
        Extension(
            "covertfl._mlp_kernel",
            ["src/covertfl/_mlp_kernel.c"],
            depends=["src/covertfl/_mlp_job.h"],
            # Products and sums are fused where the processor can; vectors never cross a call.
            extra_compile_args=[*FLAGS, "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi"],
            py_limited_api=True,
        ),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
