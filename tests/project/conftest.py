"""The built distribution, and an environment with the package alone."""

import pytest

from tests.conftest import ROOT
from tests.support.clean_environments import Distribution, Environment, build, install, requirements


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    """The wheel and the sdist of this checkout."""
    return Distribution(*build(ROOT, tmp_path_factory.mktemp("dist"), "wheel", "sdist"))


@pytest.fixture(scope="session")
def core(built: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the package and what it requires, without an extra."""
    return install(built.wheel, tmp_path_factory.mktemp("core") / "environment", requirements(built.wheel))
