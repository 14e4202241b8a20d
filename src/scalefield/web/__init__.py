"""`scalefield web`: a page where one clicks anchors and sees metres, and its JSON API.

app.py has the routes and server.py what happens there, on the threads of pool.py; guard.py,
protocol.py and uploads.py check what arrives, sessions.py holds what is kept of a photograph,
edits.py solves for an edit of the anchors, exports.py makes the files, catalogue.py names the
methods in plain words, wire.py has the format in which maps are sent. static/ has the page: app.js
connects its controls, page.js and workspace.js hold its state, solving.js and server.js do the
requests, views.js, stage.js, cloud.js and panel.js draw.
"""
