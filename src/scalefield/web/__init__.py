"""`scalefield web`: a page where one clicks anchors and sees metres, and its JSON API.

app.py has the routes and server.py what happens there, on the threads of pool.py; guard.py and
uploads.py are the border, sessions.py is what is kept of a photograph, edits.py what an edit costs,
exports.py the files to take home, wire.py how maps travel.
"""
