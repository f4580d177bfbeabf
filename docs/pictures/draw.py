"""Draws the icons and the preview picture from the mark, with Chromium: `python -m docs.pictures.draw`."""

from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from tests.support.chromium import launch

STATIC = Path(__file__).resolve().parents[2] / "agent" / "web" / "ui" / "static"
PREVIEW = """
<style>
  body { margin: 0; width: 1200px; height: 630px; display: flex; align-items: center; gap: 96px; padding: 0 110px;
         box-sizing: border-box; background: linear-gradient(135deg, #eef0fe, #fcfcfd 60%); }
  svg { flex: none; width: 300px; filter: drop-shadow(0 24px 48px rgb(24 28 48 / 22%)); }
  main { flex: 1; display: flex; flex-direction: column; gap: 26px; }
  div { border-radius: 32px; padding: 34px 40px; display: grid; gap: 18px; background: #fff; box-sizing: border-box;
        box-shadow: 0 2px 4px rgb(24 28 48 / 6%), 0 12px 40px rgb(24 28 48 / 9%); }
  div.mine { background: #4f46e5; justify-self: end; align-self: flex-end; width: 62%; }
  div.step { background: #e9ebf8; width: 44%; padding: 22px 40px; box-shadow: none; }
  i { height: 16px; border-radius: 8px; background: #c9cedd; }
  .mine i { background: #b9b5f7; }
  .step i { background: #9aa1ea; }
</style>
<main style="order: 1">
  <div class="mine"><i></i></div>
  <div class="step"><i></i></div>
  <div><i></i><i></i><i style="width: 58%"></i></div>
</main>
"""


def draw(page: Page, html: str, width: int, height: int, path: Path) -> None:
    """Render the HTML at that size and write it as a small PNG."""
    page.set_viewport_size({"width": width, "height": height})
    page.set_content(f"<style>body {{ margin: 0 }}</style>{html}")
    page.screenshot(path=path, omit_background=True)
    Image.open(path).quantize(256).save(path, optimize=True)


def main() -> None:
    """Write `preview.png`, `icon-180.png`, `icon-512.png` and `favicon.ico` beside the mark."""
    mark = (STATIC / "mark.svg").read_text(encoding="utf-8")
    # A phone cuts the corners of an icon itself.
    square = mark.replace('rx="15" ', "")
    with sync_playwright() as playwright:
        browser = launch(playwright.chromium)
        page = browser.new_page()
        draw(page, mark + PREVIEW, 1200, 630, STATIC / "preview.png")
        for size in (180, 512):
            draw(page, square, size, size, STATIC / f"icon-{size}.png")
        draw(page, mark, 48, 48, STATIC / "favicon.png")
        browser.close()
    favicon = STATIC / "favicon.png"
    Image.open(favicon).convert("RGBA").save(STATIC / "favicon.ico", sizes=[(16, 16), (32, 32), (48, 48)])
    favicon.unlink()


if __name__ == "__main__":
    main()
