#!/usr/bin/env python3
"""The page's files as C++: web_files.h says what they become.

embed.py OUT.cc
"""
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
HTML, CSS, JS, SVG, TEXT = ("text/html; charset=utf-8", "text/css; charset=utf-8", "text/javascript; charset=utf-8",
                            "image/svg+xml", "text/plain; charset=utf-8")
# Path in an address -> type, and the files that it is made of.
FILES = {
    "/": (HTML, ["index.html"]),
    "/style.css": (CSS, ["style.css"]),
    "/icon.svg": (SVG, ["icon.svg"]),
    "/app.js": (JS, ["app.js"]),
    "/store.js": (JS, ["store.js"]),
    "/heatmap.js": (JS, ["heatmap.js"]),
    "/actions.js": (JS, ["actions.js"]),
    "/goodput.js": (JS, ["goodput.js"]),
    "/panels.js": (JS, ["panels.js"]),
    "/phases.js": (JS, ["phases.js"]),
    "/vendor/htm-preact.js": (JS, ["vendor/htm-preact.js"]),
    "/vendor/uplot.js": (JS, ["vendor/uplot.js"]),
    "/vendor/uplot.css": (CSS, ["vendor/uplot.css"]),
    "/licenses.txt": (TEXT, ["vendor/README.md", "vendor/LICENSE.htm", "vendor/LICENSE.preact", "vendor/LICENSE.uplot"]),
}


def main():
    lines = ['#include "manager/page/web_files.h"\n', "namespace taskd::manager {", "namespace {\n"]
    table = []
    for number, (path, (content_type, names)) in enumerate(FILES.items()):
        content = b"\n".join((FOLDER / name).read_bytes() for name in names)
        lines.append(f"const unsigned char kContent{number}[] = {{")
        for at in range(0, len(content), 32):
            lines.append("  " + "".join(f"{byte}," for byte in content[at:at + 32]))
        lines.append("};\n")
        table.append(f'    {{"{path}", "{content_type}", {{reinterpret_cast<const char*>(kContent{number}), {len(content)}}}}},')
    lines += ["const WebFile kTable[] = {", *table, "};\n", "}  // namespace\n", "const std::span<const WebFile> kWebFiles = kTable;\n",
              "}  // namespace taskd::manager"]
    pathlib.Path(sys.argv[1]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
