import os
from pathlib import Path

import pytest

from diffwindow.data.corpora import recipe_of
from diffwindow.data.prepare import prepare


@pytest.fixture(scope="session")
def real_data():
    folder = os.environ.get("DIFFWINDOW_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs the real corpora: set DIFFWINDOW_DATA to their folder")
    return Path(folder)


@pytest.fixture(scope="session")
def agreement_store(tmp_path_factory):
    return prepare(recipe_of("agreement", rows=300), tmp_path_factory.mktemp("stores") / "agreement")
