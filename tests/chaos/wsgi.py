"""The site as a server of WSGI finds it."""

from __future__ import annotations

from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()
