"""`scalefield web`: a page on which users click anchors and read metric depth, and its JSON API.

app.py has the routes, server.py their handlers, and pool.py the threads on which they work.
guard.py and protocol.py check requests; uploads.py reads files and typed text, with limits.
sessions.py holds the state of a photograph, edits.py solves for an edit of the anchors,
measuring.py reads depths and lengths from the result, exports.py makes files, and wire.py has the
binary format of maps.

In static/, app.js connects the controls, page.js and workspace.js hold the state, solving.js and
server.js send requests, and views.js, stage.js, cloud.js and panel.js draw.
"""
