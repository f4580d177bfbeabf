"""Stands in for the player of video streams (hls.js, half a megabyte), and loads it when a stream is played.

Gradio's components for audio and video import the player at their beginning, so that every visit loads it. It plays
only values with `is_stream`, and nothing on this page is one. Gradio has no option for it.
"""

import re
from pathlib import Path

WHOLE = "whole"
"""The query with which the stand-in requests the player itself."""
_EXPORTS = re.compile(rb"export\{\w+ as n,\w+ as r,\w+ as t\};?\s*\Z")
"""`n` says if the browser can play streams, `t` begins to play one, and `r` reloads one."""
_STAND_IN = """const load = () => import("./{name}?{whole}");
export const n = () => "MediaSource" in window || "ManagedMediaSource" in window;
export const t = (...given) => {{
  let player, ended = false;
  const loaded = load().then((whole) => ended ? undefined : (player = whole.t(...given)));
  loaded.catch(console.error);
  return {{ loaded, destroy: () => ((ended = true), player?.destroy()) }};
}};
export const r = ({{ loaded }}) => Promise.all([load(), loaded]).then(([whole, player]) => player && whole.r(player));
"""


def player_stand_in(folder: Path) -> dict[str, bytes]:
    """Return the stand-in by the name of the player's file in `folder`; nothing if the player has other exports."""
    found = [path for path in folder.glob("hls-*.js") if _EXPORTS.search(path.read_bytes()[-200:])]
    return {path.name: _STAND_IN.format(name=path.name, whole=WHOLE).encode() for path in found}
