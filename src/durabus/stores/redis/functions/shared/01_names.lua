-- Names for the fields of a record. Records are MessagePack arrays. `false` stands for a missing value, because an
-- array with a hole would be packed as a map.

-- the state of an event: the fields that change, and those that every step needs
local ID, STATUS, ATTEMPTS, GENERATION, FENCE, WORKER, TOKEN = 1, 2, 3, 4, 5, 6, 7
local CREATED, UPDATED, DUE, PICKED, STARTED, EXPIRES = 8, 9, 10, 11, 12, 13
local BUS, ERRORS, TRAIL, LOCK_KEY, LOCK_FENCE, SETTLED, HANDLERS, TAGGED = 14, 15, 16, 17, 18, 19, 20, 21
local CHILD_OF = 22 -- the event_id of the parent
local STATE_PLACES = 22
local ORDERING_KEY = 23 -- the ordering key; a state without one ends before it

-- While an event is abandoned and not claimed again, TOKEN holds the abandoned claim: its settlement still counts.
local A_TOKEN, A_WORKER, A_PICKED, A_STARTED = 1, 2, 3, 4

-- the newest settlement, in SETTLED
local BY_TOKEN, BY_FENCE, BY_ACTION, TO_RETRY = 1, 2, 3, 4

-- a handler of an event: its result, and the claim on it
local H_ID, H_STATUS, H_ATTEMPTS, H_ERROR, H_VALUE, H_TIME = 1, 2, 3, 4, 5, 6
local H_FENCE, H_WORKER, H_EXPIRES, H_TOKEN, H_SETTLED, H_LOCK = 7, 8, 9, 10, 11, 12

-- a lock; L_EVENTS: a claim on events took it under the same token; L_NAMED: claim_lock took it by name
local L_KEY, L_FENCE, L_WORKER, L_TOKEN, L_EXPIRES, L_EVENTS, L_NAMED = 1, 2, 3, 4, 5, 6, 7

-- a bus, and a handler that a node registered for it
local B_SEEN, B_STOPPED, B_REVISION = 2, 3, 4
local R_HANDLER, R_NODE, R_PATTERN, R_CREATED, R_UNTIL = 1, 2, 3, 4, 6

local NONE = {}
local NOT_YOURS, NOT_DONE, NO_EVENT = 1, 2, 3
local LIVE = { PENDING = true, PROCESSING = true } -- of an event; a handler in one of these may be offered
local HISTORY = { COMPLETED = true, CANCELLED = true }
local DEAD = { COMPLETED_WITH_ERRORS = true, FAILED = true }
local MAX_LOGGED_BYTES = 4096
local SETTLED_RESULT = { SUCCEEDED = true, UNRECOVERABLE = true, CANCELLED = true, ABORTED = true, KEPT = true }
local STEP = { KEPT = true, WAITING = true }

local SLICE = 4000 -- maximum number of arguments of one command: Lua's stack holds 8,000
local BLOCK = 1000 -- number of log positions that share one count
local LARGE = 32 * 1024 * 1024 -- a reply ends early once it has more bytes than this
