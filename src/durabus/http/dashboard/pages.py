"""All addresses of the dashboard."""

from durabus.http.dashboard import (
    dead_letters_page,
    event_page,
    events_page,
    handlers_page,
    live_page,
    login_page,
    overview_page,
    rendering,
    workers_page,
)

ROUTES = [
    *rendering.ROUTES,
    *login_page.ROUTES,
    *overview_page.ROUTES,
    *events_page.ROUTES,
    *event_page.ROUTES,
    *dead_letters_page.ROUTES,
    *handlers_page.ROUTES,
    *workers_page.ROUTES,
    *live_page.ROUTES,
]
