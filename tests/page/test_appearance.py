"""The language and the colours that a visitor chooses in the settings."""

from playwright.sync_api import expect

from tests.conftest import App, Visit, becomes

GROUND = "getComputedStyle(document.querySelector('gradio-app')).backgroundColor"


def test_chosen_language_stays_and_reaches_every_answer(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page = visitor.page
    visitor.box.fill("A draft")
    visitor.open_settings()
    menu = page.get_by_label("Language", exact=True)
    expect(menu).to_have_value("")
    assert menu.locator("option").all_inner_texts() == [
        "As in the browser", "English", "Deutsch", "Français", "한국어", "中文",
    ]  # fmt: skip
    menu.select_option("Deutsch")
    expect(page.get_by_role("button", name="Neuer Chat").first).to_be_visible()
    expect(visitor.box).to_have_value("A draft")
    visitor.box.fill("!status 401")
    visitor.box.press("Enter")
    expect(visitor.chat.locator("[data-kind=error]")).to_contain_text("Schlüssel")
    visitor.reload()
    expect(page.locator("html")).to_have_attribute("lang", "de")
    expect(visitor.chat.locator("[data-kind=error]")).to_contain_text("Schlüssel")
    page.get_by_role("button", name="Einstellungen auf- oder zuklappen").click()
    menu = page.get_by_label("Sprache", exact=True)
    expect(menu).to_have_value("de")
    page.locator("#appearance").scroll_into_view_if_needed()
    visitor.shot("appearance-german")
    menu.select_option("Wie im Browser")
    expect(page.get_by_role("button", name="New chat").first).to_be_visible()


def test_chosen_colours_stay(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page = visitor.page
    light = page.evaluate(GROUND)
    visitor.open_settings()
    menu = page.get_by_label("Colours", exact=True)
    menu.select_option("Dark")
    becomes(True, lambda: page.evaluate("document.body.classList.contains('dark')"))
    becomes(True, lambda: page.evaluate(GROUND) != light)
    dark = page.evaluate(GROUND)
    page.locator("#appearance").scroll_into_view_if_needed()
    visitor.shot("appearance-dark")
    visitor.reload()
    assert page.evaluate("document.documentElement.dataset.colours") == "dark"
    becomes(dark, lambda: page.evaluate(GROUND))
    visitor.open_settings()
    expect(menu).to_have_value("dark")
    menu.select_option("Light")
    page.emulate_media(color_scheme="dark")
    becomes(light, lambda: page.evaluate(GROUND))
    menu.select_option("As in the browser")
    becomes(dark, lambda: page.evaluate(GROUND))
    page.emulate_media(color_scheme="light")
    becomes(light, lambda: page.evaluate(GROUND))
