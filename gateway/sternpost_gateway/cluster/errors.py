"""What goes wrong between a gateway and the API server."""

from __future__ import annotations

from sternpost_core.errors import OperatingError


class ClusterError(OperatingError):
    """The API server could not be asked, or did not answer usefully; what was known before stays."""


class Silent(ClusterError):
    """No answer came in time: the server is busy or away, or the connection that was used is dead."""


class Expired(ClusterError):
    """The version that a watch was to begin at is too old (HTTP 410): list again."""


class Denied(ClusterError):
    """The service account may not do what the gateway needs; the message names verb and resource."""


class NotServed(ClusterError):
    """The API server does not know the resource: the CRDs are not applied."""
