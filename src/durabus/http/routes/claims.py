"""Claims for fast workers: many at once, with a long poll, settled by token and fence."""

from __future__ import annotations

from functools import partial

import msgspec
from litestar import post

from durabus.errors import LeaseLost
from durabus.http.api import Api, api_of, listens, principal_of, still_allowed
from durabus.http.asgi import AnyRequest
from durabus.http.auth.access import Principal, Scope, scoped_token, shown, shown_results
from durabus.http.openapi import DocumentedResponse, described
from durabus.http.problems import Code, Problem, decoded
from durabus.http.schema.claims import (
    ClaimDocument,
    ClaimRequestDocument,
    ClaimsDocument,
    OutcomeDocument,
    RenewalDocument,
    RenewDocument,
    RenewedDocument,
    SettledDocument,
    SettleDocument,
    WaitingClaimRequestDocument,
    claim_document,
)
from durabus.http.schema.fields import split_tags
from durabus.http.worker_actions import claim
from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.settlement import Settled
from durabus.model.statuses import TERMINAL, EventMode
from durabus.worker.cancelling import without_expired
from durabus.worker.replies import tell_of_ends

NOT_FOUND = {404: DocumentedResponse("An event does not exist, or this token may not see it: nothing was written.")}
TAKEN = {409: DocumentedResponse("The claim token belongs to another sender.")}


@post("/claims", status_code=200, opt=described(Scope.CLAIM, TAKEN, WaitingClaimRequestDocument))
async def create_claims(request: AnyRequest) -> ClaimsDocument:
    """Claim up to ``limit`` events; with ``wait``, wait for them."""
    data = await decoded(request, WaitingClaimRequestDocument)
    api, principal = api_of(request), principal_of(request)
    wait = min(data.wait, api.settings.max_wait)
    wanted = claim_request(api, principal, data)
    claims = await claim(
        api,
        wanted,
        wait=wait,
        receive=request.receive,
        allowed=still_allowed(request),
        listens=partial(listens, request),
    )
    return ClaimsDocument(claims=granted(api, principal, claims))


@post("/claims/settle", status_code=200, opt=described(Scope.CLAIM, {**NOT_FOUND, **TAKEN}, SettleDocument))
async def settle_claims(request: AnyRequest) -> SettledDocument:
    """End claims, and claim the next ones in the same step. The outcome says if a claim was lost."""
    data = await decoded(request, SettleDocument)
    api, principal = api_of(request), principal_of(request)
    await api.check_events([one.id for one in data.settlements], principal)
    settlements = [one.settlement(api.settings.retry_delay) for one in data.settlements]
    wanted = None if data.then_claim is None else claim_request(api, principal, data.then_claim)
    settled = await api.store.settle_events(settlements, then_claim=wanted)
    outcomes = [
        OutcomeDocument(id=one.id, lost=outcome.reason)
        if isinstance(outcome, LeaseLost)
        else OutcomeDocument(id=one.id, status=outcome.status, next_retry_ts=outcome.next_retry_ts)
        for one, outcome in zip(data.settlements, settled.outcomes, strict=True)
    ]
    made = {outcome.id: outcome.status for outcome in settled.outcomes if isinstance(outcome, Settled)}
    ended = [claim.metadata_json for claim in api.granted.forget(made) if made[claim.ref.id] in TERMINAL]
    await tell_of_ends(api.store, ended)
    claims = [] if wanted is None else await without_expired(api.store, wanted, settled.claims)
    return SettledDocument(outcomes=outcomes, claims=granted(api, principal, claims))


@post("/claims/renew", status_code=200, opt=described(Scope.CLAIM, NOT_FOUND, RenewDocument))
async def renew_claims(request: AnyRequest) -> RenewedDocument:
    """Keep claims for another lease. The response says in its place if a claim was lost."""
    data = await decoded(request, RenewDocument)
    api = api_of(request)
    await api.check_events([one.id for one in data.claims], principal_of(request))
    return await renew(api, data)


async def renew(api: Api, data: RenewDocument) -> RenewedDocument:
    """Extend leases. Each claim succeeds or fails by itself."""
    renewals = await api.store.renew_event_claims(
        [one.ref for one in data.claims], lease=data.lease or api.settings.lease
    )
    return RenewedDocument(
        claims=[
            RenewalDocument(id=one.id, lost=renewal.reason)
            if isinstance(renewal, LeaseLost)
            else RenewalDocument(id=one.id, expires_ts=renewal)
            for one, renewal in zip(data.claims, renewals, strict=True)
        ]
    )


@post("/claims/start", status_code=200, opt=described(Scope.CLAIM, NOT_FOUND, RenewDocument))
async def start_claims(request: AnyRequest) -> RenewedDocument:
    """Record that work began on claims, and keep them for another lease."""
    data = await decoded(request, RenewDocument)
    api = api_of(request)
    await api.check_events([one.id for one in data.claims], principal_of(request))
    await api.store.start_events([one.ref for one in data.claims])
    return await renew(api, data)


def claim_request(api: Api, principal: Principal, document: ClaimRequestDocument) -> ClaimRequest:
    """The request for the store, limited to what the sender may claim."""
    check_mode(principal, document.mode)
    return ClaimRequest(
        bus=api.bus(document.bus, principal),
        worker_id=document.worker_id,
        token=new_token() if document.token is None else scoped_token(principal, document.token),
        limit=document.limit,
        lease=document.lease or api.settings.lease,
        mode=document.mode,
        tags=principal.narrow(split_tags(document.tags)),
        max_attempts=api.settings.max_retries,
    )


def check_mode(principal: Principal, mode: EventMode) -> None:
    """Refuse locks that would block events which the sender may not see."""
    if mode is not EventMode.PARALLEL:
        principal.check_whole_bus(f"mode={mode.value}")
    if mode is EventMode.GLOBAL_SERIAL and principal.limited:
        raise Problem(403, "mode=global-serial concerns every bus, and this token is limited to some of them")


def granted(api: Api, principal: Principal, claims: list[Claim]) -> list[ClaimDocument]:
    """The claims for the response. The server remembers them, so that it need not read them for a report."""
    documents = [claim_document(one) for one in seen(principal, claims)]
    api.granted.add(claims, principal)
    return documents


def seen(principal: Principal, claims: list[Claim]) -> list[Claim]:
    """The claims with keys as the sender sent them. Refuses a token that belongs to another sender's claim."""
    if not principal.limited:
        return claims
    if not all(principal.sees(claim.event) for claim in claims):
        # Another tenant cannot cause this, only a worker with an unlimited token that imitates a scope.
        raise Problem(
            409, "this claim token belongs to another sender: send a random one, or none", code=Code.CLAIM_TOKEN_TAKEN
        )
    return [
        msgspec.structs.replace(
            claim,
            event=shown(principal, claim.event),
            results=tuple(shown_results(principal, claim.event.bus, claim.results)),
        )
        for claim in claims
    ]


ROUTES = [create_claims, settle_claims, renew_claims, start_claims]
