-- Processes show their presence: each claim does so, and a process that holds claims repeats it every second.

local processes = {}

local PRESENT_FOR = 2.5 -- seconds; as in durabus.store.processes
local INCARNATION_LENGTH = 12
local HEX = '[0-9a-f]'
local HEX_4 = HEX .. HEX .. HEX .. HEX
local INCARNATION = '^~' .. HEX_4 .. HEX_4 .. HEX .. HEX .. HEX -- no library functions exist while this file loads

-- Return whether a token belongs to a process.
function processes.owns(incarnation, token)
  return type(token) == 'string' and string.sub(token, 1, INCARNATION_LENGTH) == incarnation
end

-- Note that the process which a token belongs to lives. Most tokens of a worker belong to its process.
function processes.saw(tx, token)
  if string.byte(token, 1) == 126 and string.find(token, INCARNATION) then
    add(tx, tx[PROCESSES], string.sub(token, 1, INCARNATION_LENGTH), tx.now)
  end
end

function processes.lives(tx, incarnation)
  local seen = redis.call('ZSCORE', tx[PROCESSES], incarnation)
  return seen and tonumber(seen) + PRESENT_FOR > tx.now
end
