"""Render scenes with exact depth.

    python -m recipes.scenes library --library LIB
    python -m recipes.scenes render --library LIB --kind mix --scenes 400 --views 10 --out DIR
    python -m recipes.scenes check --out DIR
    python -m recipes.scenes sheet --out DIR --picture sheet.png

`library` builds and freezes the assets and materials, once. `render` renders scenes, one process
each, and goes on where it was stopped. `check` compares depth with a known plane, and reprojects
finished views into each other. `sheet` draws a contact sheet. See docs/scenes.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main() -> int:
    """Run a command; its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.scenes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    library = commands.add_parser("library", help="build and freeze the library")
    library.add_argument("--library", type=Path, required=True)
    library.add_argument("--rounds", type=int, default=8, help="variants of each factory")
    library.add_argument("--minutes", type=float, default=60, help="when to stop building")
    render = commands.add_parser("render", help="render scenes")
    render.add_argument("--library", type=Path, required=True, help="folder of the frozen library")
    render.add_argument("--out", type=Path, required=True, help="folder of the data set")
    render.add_argument("--kind", default="mix", help="indoor, street, tabletop, passage or mix")
    render.add_argument("--scenes", type=int, default=400)
    render.add_argument("--views", type=int, default=8, help="views of each scene")
    render.add_argument("--seed", type=int, default=0, help="seed of the first scene")
    render.add_argument("--samples", type=int, help="samples a pixel (default: by kind)")
    render.add_argument("--threads", type=int, default=2)
    render.add_argument("--scene-limit-s", type=int, default=1800, help="processor time of a scene")
    render.add_argument("--pid-file", type=Path, help="gets the id of the rendering process")
    check = commands.add_parser("check", help="check depth against a plane and between views")
    check.add_argument("--out", type=Path, help="a rendered data set")
    check.add_argument("--scenes", type=int, default=20, help="scenes of each kind to reproject")
    sheet = commands.add_parser("sheet", help="draw a contact sheet")
    sheet.add_argument("--out", type=Path, required=True)
    sheet.add_argument("--picture", type=Path, required=True)
    sheet.add_argument("--match", default="", help="only frames whose names begin so")
    sheet.add_argument("--frames", type=int, default=24)
    args = parser.parse_args()
    if args.command == "library":
        from recipes.scenes.library import LibraryConfig, build

        manifest = build(LibraryConfig(args.rounds, minutes=args.minutes), args.library)
        print(f"version {manifest['version']}, hash {manifest['hash']}")
        print(f"{len(manifest['assets'])} assets, {len(manifest['materials'])} materials")
        return 0
    if args.command == "render":
        from recipes.scenes.run import RunConfig, run

        return run(RunConfig(**{k: v for k, v in vars(args).items() if k != "command"}))
    if args.command == "check":
        from recipes.scenes.check import check_all

        return check_all(args.out, args.scenes)
    from recipes.scenes.sheet import draw_sheet

    draw_sheet(args.out, args.picture, args.match, args.frames)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
