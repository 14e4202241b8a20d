"""Helpers for tests of the page: positions on the photo, clicks, displayed values."""

from __future__ import annotations

THREE = ((60, 420, 2.37), (360, 270, 2.96), (300, 155, 4.42))


def at(page, u: float, v: float, width: int = 640, height: int = 480) -> tuple[float, float]:
    """Where on the screen a pixel of the whole photo lies."""
    box = page.locator("#stage").bounding_box()
    scale = min(box["width"] / width, box["height"] / height)
    left = box["x"] + (box["width"] - scale * width) / 2
    top = box["y"] + (box["height"] - scale * height) / 2
    return left + (u + 0.5) * scale, top + (v + 0.5) * scale


def place(page, u: int, v: int, distance: str) -> None:
    page.mouse.click(*at(page, u, v))
    page.fill("#card-value", distance)
    page.keyboard.press("Enter")


def hover(page, u: int, v: int) -> float:
    """The metres that the readout shows there."""
    page.mouse.move(*at(page, u, v))
    shown = page.inner_text("#readout")
    perhaps = shown.partition("perhaps ")[2]  # a value without support has its range first
    return float((perhaps or shown).split()[0])


def solved(page, anchors: int, method: str = "field") -> None:
    """Wait until the result for so many anchors is shown."""
    page.wait_for_function(
        "wanted => document.body.dataset.solved?.startsWith(wanted) && "
        "document.body.dataset.solved.endsWith('full') && "
        "document.getElementById('stage').ariaBusy === 'false'",
        arg=f"{method} {anchors} ",
    )


def saved(page) -> None:
    """Wait until the browser's database has everything."""
    page.wait_for_selector("body[data-saved=yes]")


def distances(page) -> list[str]:
    """What the list of anchors shows."""
    return page.eval_on_selector_all("#anchor-list input", "nodes => nodes.map((n) => n.value)")


def paste(page, text: str) -> None:
    """Paste text on the page, not into a field."""
    page.evaluate(
        """text => {
          const data = new DataTransfer();
          data.setData("text/plain", text);
          document.body.dispatchEvent(
            new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
        }""",
        text,
    )


def drop(page, files: list[dict]) -> None:
    """Drop files {name, type, base64} on the page."""
    page.evaluate(
        """files => {
          const data = new DataTransfer();
          for (const { name, type, base64 } of files) {
            const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
            data.items.add(new File([bytes], name, { type }));
          }
          document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
        }""",
        files,
    )


def painted(page) -> None:
    """Wait until what was asked for is on the screen: two frames."""
    page.evaluate(
        "() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"
    )
