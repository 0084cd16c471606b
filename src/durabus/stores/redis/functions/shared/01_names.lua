-- Names for the places of a record. Records are MessagePack arrays; `false` stands for what is not there, because an
-- array with a hole would be packed as a map.

-- an event's state: what changes, and what every step needs
local ID, STATUS, ATTEMPTS, GENERATION, FENCE, WORKER, TOKEN = 1, 2, 3, 4, 5, 6, 7
local CREATED, UPDATED, DUE, PICKED, STARTED, EXPIRES = 8, 9, 10, 11, 12, 13
local BUS, ERRORS, TRAIL, LOCK_KEY, LOCK_FENCE, SETTLED, HANDLERS, TAGGED = 14, 15, 16, 17, 18, 19, 20, 21
local STATE_PLACES = 21
local LINE = 22 -- the ordering key; a state without one ends before it

-- An abandoned claim that nobody followed stands in the place of the token: the settlement of its holder still counts.
local A_TOKEN, A_WORKER, A_PICKED, A_STARTED = 1, 2, 3, 4

-- how the last claim ended, inside the state
local BY_TOKEN, BY_FENCE, BY_ACTION, TO_RETRY = 1, 2, 3, 4

-- a handler of an event: its result, and the claim on it
local H_ID, H_STATUS, H_ATTEMPTS, H_ERROR, H_VALUE, H_TIME = 1, 2, 3, 4, 5, 6
local H_FENCE, H_WORKER, H_EXPIRES, H_TOKEN, H_SETTLED = 7, 8, 9, 10, 11

-- a lock; L_EVENTS says that it came with the events that its token holds, L_NAMED that it was claimed by name
local L_KEY, L_FENCE, L_WORKER, L_TOKEN, L_EXPIRES, L_EVENTS, L_NAMED = 1, 2, 3, 4, 5, 6, 7

-- a bus, and a handler that a node announced for it
local B_SEEN, B_STOPPED, B_REVISION = 2, 3, 4
local R_HANDLER, R_NODE, R_PATTERN, R_CREATED, R_UNTIL = 1, 2, 3, 4, 6

local NONE = {}
local NOT_YOURS, NOT_DONE, NO_EVENT = 1, 2, 3
local DEAD = { COMPLETED_WITH_ERRORS = true, FAILED = true }
local SETTLED_RESULT = { SUCCEEDED = true, UNRECOVERABLE = true, CANCELLED = true, ABORTED = true }

local SLICE = 4000 -- arguments of one command: Lua's stack ends at 8,000
local BLOCK = 1000 -- positions of the log that are counted together
local LARGE = 32 * 1024 * 1024 -- bytes of one answer beyond which it ends early
