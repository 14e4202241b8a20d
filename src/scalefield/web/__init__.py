"""`scalefield web`: a page where one clicks anchors and sees metres, and its JSON API.

app.py has the routes, guard.py and uploads.py the border, sessions.py what is kept of a photograph,
edits.py what an edit costs, exports.py the files to take home, wire.py how maps travel.
"""
