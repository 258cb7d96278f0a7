"""A sentence typed in Chromium, through the server to a model and back."""

import threading
import time

import pytest
import uvicorn

from diffwindow.inference.attention import live_events
from diffwindow.inference.server import bound_socket, create_app, server_config
from diffwindow.tasks.model_folder import ModelFolder
from samples.browser import expect, launched, opened
from samples.model_folders import save_model


@pytest.fixture(scope="module")
def browser():
    yield from launched()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    trained = ModelFolder.read(save_model(tmp_path_factory.mktemp("live") / "translator", "translator"))
    app = create_app(live_events(trained, None, most_tokens=20), label="A sentence", title="a model")
    server, listening = uvicorn.Server(server_config(app)), bound_socket("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(15)


def test_a_typed_sentence_is_translated_and_shown(browser, address):
    page = opened(browser, address)
    assert page.is_hidden("#main")
    page.fill("#text", "my <b>lamp</b> fell")
    page.press("#text", "Enter")
    expect(page.locator("#roles label")).to_have_count(3, timeout=20_000)
    expect(page.locator("#live-status")).to_have_text("")
    # the page stays on the cross-attention, whose steps it has shown
    assert page.inner_text("#head-name").startswith("Cross-attention, layer 1")
    assert page.inner_text("h1") == "my <b>lamp</b> fell"
    assert page.locator("b").count() == 0
    translation = page.locator("#queries li").all_inner_texts()
    assert translation[-1] == "</s>"
    assert page.inner_text("#output").split() == translation[:-1]
    assert page.problems == []
    page.context.close()


def test_a_new_sentence_keeps_what_the_reader_chose(browser, address):
    page = opened(browser, address)
    page.fill("#text", "my lamp fell")
    page.press("#text", "Enter")
    expect(page.locator("#roles label")).to_have_count(3, timeout=20_000)
    page.click("label[for=role-Enc]")
    page.select_option("#sort", "entropy")
    page.fill("#text", "my lamp fell again")
    page.press("#text", "Enter")
    expect(page.locator("h1")).to_have_text("my lamp fell again", timeout=20_000)
    expect(page.locator("#roles label")).to_have_count(3, timeout=20_000)
    assert page.inner_text("#head-name").startswith("Encoder, layer 1")
    assert page.input_value("#sort") == "entropy"
    page.context.close()


def test_a_mistake_is_shown_and_the_page_goes_on(browser, address):
    page = opened(browser, address)
    page.fill("#text", "lamp " * 30)
    page.click("#send")
    expect(page.locator("#live-status")).to_have_text("the sentence has 30 tokens; up to 20 are shown")
    page.fill("#text", "my lamp")
    page.click("#send")
    expect(page.locator("#queries li")).not_to_have_count(0, timeout=20_000)
    page.context.close()
