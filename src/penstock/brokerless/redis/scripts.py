"""The scripts that run inside Redis. Each is one call of a store, and changes all or nothing.

`KEYS[1]` is the prefix of all keys; its braces keep them in one slot of a cluster. `docs/internals/brokerless.md` has
the keys. A script checks everything before it changes anything, because Redis does not undo what a script has done.

Positions and ids: the entry of offset 7 has the id `8-0`. A group that has committed 7 (the entries before offset 7 are
settled) has the last delivered id `7-1`; one that has only claimed a partition has `0-0`.
"""

PRELUDE = """
if redis.replicate_commands then redis.replicate_commands() end
local P = KEYS[1]
local at = 0
local function take() at = at + 1; return ARGV[at] end
local function number() return tonumber(take()) end
local function text(value) return string.format('%.0f', value) end
local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local function log_of(topic, partition) return P .. 'log:' .. topic .. ':' .. partition end
local function end_of(topic, partition)
  return tonumber(redis.call('GET', P .. 'end:' .. topic .. ':' .. partition) or '0')
end

-- Committed offsets.
local function committed(topic, partition, group)
  local groups = redis.pcall('XINFO', 'GROUPS', log_of(topic, partition))
  if groups.err then return nil end
  for _, fields in ipairs(groups) do
    local name, id
    for place = 1, #fields, 2 do
      if fields[place] == 'name' then name = fields[place + 1] end
      if fields[place] == 'last-delivered-id' then id = fields[place + 1] end
    end
    if name == group then
      if id == '0-0' then return nil, true end
      return string.match(id, '^%d+'), true
    end
  end
  return nil, false
end
local function set_position(topic, partition, group, id)
  local log = log_of(topic, partition)
  if redis.pcall('XGROUP', 'SETID', log, group, id).err then
    redis.call('XGROUP', 'CREATE', log, group, id, 'MKSTREAM')
  end
end

-- Members and claims.
local function split_claim(value) return string.match(value, '^(%d+):(.*)$') end
local function drop_claims(group, member)
  local claims = redis.call('HGETALL', P .. 'claims:' .. group)
  for place = 1, #claims, 2 do
    local epoch, owner = split_claim(claims[place + 1])
    if owner == member then redis.call('HSET', P .. 'claims:' .. group, claims[place], epoch .. ':') end
  end
end
local function expire(group)
  local time = now()
  local members = redis.call('HGETALL', P .. 'members:' .. group)
  for place = 1, #members, 2 do
    local session, ends = string.match(members[place + 1], '^(%d+):(%d+):')
    -- An end further away than the session is long: the clock was set back.
    if tonumber(ends) <= time or tonumber(ends) > time + tonumber(session) then
      redis.call('HDEL', P .. 'members:' .. group, members[place])
      drop_claims(group, members[place])
    end
  end
end
local function owns(group, member, topic, partition, epoch)
  local value = redis.call('HGET', P .. 'claims:' .. group, topic .. ':' .. partition)
  return value == epoch .. ':' .. member
end

-- Messages. `has` says which of value, key and headers a message has, by letters.
local function entry_args(log, id, has, time, v, k, h)
  local args = {'XADD', log, id, 't', time}
  if string.find(has, 'v', 1, true) then args[#args + 1] = 'v'; args[#args + 1] = v end
  if string.find(has, 'k', 1, true) then args[#args + 1] = 'k'; args[#args + 1] = k end
  if string.find(has, 'h', 1, true) then args[#args + 1] = 'h'; args[#args + 1] = h end
  return args
end
local function put(topic, partition, has, time, v, k, h)
  local offset = redis.call('INCR', P .. 'end:' .. topic .. ':' .. partition) - 1
  redis.call(unpack(entry_args(log_of(topic, partition), text(offset + 1) .. '-0', has, time, v, k, h)))
  return offset
end
local function trim(topic, partition, most)
  if most > 0 then redis.call('XTRIM', log_of(topic, partition), 'MAXLEN', '~', most) end
end

-- Delayed messages.
local function forget_timer(topic, id)
  local partition, name = unpack(redis.call('HMGET', P .. 'timer:' .. id, 'p', 'name'))
  if name then redis.call('HDEL', P .. 'names:' .. topic, partition .. ':' .. name) end
  redis.call('ZREM', P .. 'due:' .. topic, id)
  if redis.call('DEL', P .. 'timer:' .. id) == 1 then redis.call('DECR', P .. 'waiting') end
end
local function cancel(topic, partition, name)
  local id = redis.call('HGET', P .. 'names:' .. topic, partition .. ':' .. name)
  if id then forget_timer(topic, id) end
end
"""

COMMIT = (
    PRELUDE
    + """
-- ARGV: transactional id or '', epoch; group or '', member, count, (topic, partition, position, epoch)...;
-- most delayed messages, count of new ones; count of batches, each: topic, partition, producer, first number, most
-- messages in the log, count, (kind, has, time or due time, name, v, k, h)...
local fence, fence_epoch = take(), take()
local group, member, count = take(), take(), number()
local positions = {}
for place = 1, count do positions[place] = {take(), take(), take(), take()} end
local most_delayed, new_delayed = number(), number()
local batches = number()

local after_offsets = at
local results, is_known, known = {}, {}, 0
for place = 1, batches do
  local topic, partition, producer, first = take(), take(), take(), take()
  local _, messages = take(), number()
  local seen = redis.call('GET', P .. 'seq:' .. topic .. ':' .. partition .. ':' .. producer)
  if seen and string.match(seen, '^%d+') == first then
    results[place] = string.match(seen, ':(.*)$')
    is_known[place] = true
    known = known + 1
  end
  at = at + messages * 7
end
if batches > 0 and known == batches then return results end
if fence ~= '' and redis.call('HGET', P .. 'fences', fence) ~= fence_epoch then return {err = 'FENCED ' .. fence} end
for _, each in ipairs(positions) do
  if not owns(group, member, each[1], each[2], each[4]) then return {err = 'CLAIMED ' .. each[1] .. '-' .. each[2]} end
end
if new_delayed > 0 and tonumber(redis.call('GET', P .. 'waiting') or '0') + new_delayed > most_delayed then
  return {err = 'DELAYED ' .. redis.call('GET', P .. 'waiting')}
end

for _, each in ipairs(positions) do set_position(each[1], each[2], group, each[3] .. '-1') end
at = after_offsets
local time = text(now())
for place = 1, batches do
  local topic, partition, producer, first = take(), take(), take(), take()
  local most, messages = number(), number()
  if is_known[place] then
    at = at + messages * 7
  else
    local offsets = {}
    for spot = 1, messages do
      local kind, has, when, name, v, k, h = take(), take(), take(), take(), take(), take(), take()
      offsets[spot] = '-'
      if kind == 'now' then
        offsets[spot] = text(put(topic, partition, has, when == '' and time or when, v, k, h))
      elseif kind == 'cancel' then
        cancel(topic, partition, name)
      else
        if kind == 'named' then cancel(topic, partition, name) end
        local id = string.format('%016d', redis.call('INCR', P .. 'numbers'))
        redis.call('HSET', P .. 'timer:' .. id, 'p', partition, 'has', has, 'v', v, 'k', k, 'h', h)
        if kind == 'named' then
          redis.call('HSET', P .. 'timer:' .. id, 'name', name)
          redis.call('HSET', P .. 'names:' .. topic, partition .. ':' .. name, id)
        end
        redis.call('ZADD', P .. 'due:' .. topic, when, id)
        redis.call('SADD', P .. 'delayed', topic)
        redis.call('INCR', P .. 'waiting')
      end
    end
    trim(topic, partition, most)
    results[place] = table.concat(offsets, ',')
    redis.call('SET', P .. 'seq:' .. topic .. ':' .. partition .. ':' .. producer, first .. ':' .. results[place],
      'PX', 3600000)
  end
end
return results
"""
)

BOUNDS = (
    PRELUDE
    + """
local topic, partition = take(), take()
local oldest = redis.call('XRANGE', log_of(topic, partition), '-', '+', 'COUNT', 1)
local last = text(end_of(topic, partition))
if #oldest == 0 then return {last, last} end
return {text(tonumber(string.match(oldest[1][1], '^%d+')) - 1), last}
"""
)

HEARTBEAT = (
    PRELUDE
    + """
local group, member, topics, session = take(), take(), take(), number()
expire(group)
redis.call('HSET', P .. 'members:' .. group, member, text(session) .. ':' .. text(now() + session) .. ':' .. topics)
return {redis.call('HGETALL', P .. 'members:' .. group), redis.call('HGETALL', P .. 'claims:' .. group)}
"""
)

CLAIM = (
    PRELUDE
    + """
local group, member, count = take(), take(), number()
expire(group)
local granted = {}
if redis.call('HEXISTS', P .. 'members:' .. group, member) == 0 then return granted end
for _ = 1, count do
  local topic, partition = take(), take()
  local field = topic .. ':' .. partition
  local epoch, owner = split_claim(redis.call('HGET', P .. 'claims:' .. group, field) or '0:')
  if owner == '' then
    epoch = text(tonumber(epoch) + 1)
    redis.call('HSET', P .. 'claims:' .. group, field, epoch .. ':' .. member)
    local position, exists = committed(topic, partition, group)
    -- Known from now on, so that nothing is trimmed that it has not read.
    if not exists then set_position(topic, partition, group, '0-0') end
    granted[#granted + 1] = {topic, partition, epoch, position or ''}
  end
end
return granted
"""
)

RELEASE = (
    PRELUDE
    + """
local group, member, count = take(), take(), number()
for _ = 1, count do
  local topic, partition, epoch = take(), take(), take()
  if owns(group, member, topic, partition, epoch) then
    redis.call('HSET', P .. 'claims:' .. group, topic .. ':' .. partition, epoch .. ':')
  end
end
return 1
"""
)

LEAVE = (
    PRELUDE
    + """
local group, member = take(), take()
redis.call('HDEL', P .. 'members:' .. group, member)
drop_claims(group, member)
return 1
"""
)

COMMITTED = (
    PRELUDE
    + """
local group, count = take(), number()
local found = {}
for place = 1, count do
  local topic, partition = take(), take()
  found[place] = committed(topic, partition, group) or ''
end
return found
"""
)

COMMIT_INITIAL = (
    PRELUDE
    + """
local group, count = take(), number()
for _ = 1, count do
  local topic, partition, position = take(), take(), take()
  if not committed(topic, partition, group) then set_position(topic, partition, group, position .. '-1') end
end
return 1
"""
)

DUE = (
    PRELUDE
    + """
local limit = number()
local time, following, found = now(), '', {}
for _, topic in ipairs(redis.call('SMEMBERS', P .. 'delayed')) do
  local key = P .. 'due:' .. topic
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if #first == 0 then
    redis.call('SREM', P .. 'delayed', topic)
  elseif tonumber(first[2]) > time then
    if following == '' or tonumber(first[2]) < tonumber(following) then following = first[2] end
  else
    local due = redis.call('ZRANGEBYSCORE', key, '-inf', time, 'WITHSCORES', 'LIMIT', 0, limit)
    for place = 1, #due, 2 do
      local timer = redis.call('HMGET', P .. 'timer:' .. due[place], 'p', 'has', 'v', 'k', 'h')
      found[#found + 1] = {topic, due[place], due[place + 1], timer[1], timer[2], timer[3], timer[4], timer[5]}
    end
  end
end
return {text(time), following, found}
"""
)

DELIVER = (
    PRELUDE
    + """
-- ARGV: count, each: topic, id, due time, next due time or '', partition, most messages, has, v, k, h
local count, time, delivered = number(), text(now()), 0
for _ = 1, count do
  local topic, id, due, following = take(), take(), take(), take()
  local partition, most, has, v, k, h = take(), number(), take(), take(), take(), take()
  local score = redis.call('ZSCORE', P .. 'due:' .. topic, id)
  -- Delivered by another client, or cancelled, since it was read.
  if score and tonumber(score) == tonumber(due) then
    put(topic, partition, has, time, v, k, h)
    trim(topic, partition, most)
    if following == '' then
      forget_timer(topic, id)
    else
      redis.call('ZADD', P .. 'due:' .. topic, following, id)
    end
    delivered = delivered + 1
  end
end
return delivered
"""
)

LIST = (
    PRELUDE
    + """
-- ARGV: topic, partition or '', name or '', count of partitions, from, until or '', limit
local topic, partition, name, partitions = take(), take(), take(), number()
local from, till, limit = take(), take(), number()
local found = {}
local function add(id, due)
  local timer = redis.call('HMGET', P .. 'timer:' .. id, 'p', 'has', 'v', 'k', 'h')
  if partition == '' or timer[1] == partition then
    found[#found + 1] = {timer[1], due, timer[2], timer[3], timer[4], timer[5]}
  end
end
if name ~= '' then
  for each = 0, partitions - 1 do
    local id = redis.call('HGET', P .. 'names:' .. topic, text(each) .. ':' .. name)
    if id then add(id, redis.call('ZSCORE', P .. 'due:' .. topic, id)) end
  end
  return found
end
local passed = 0
while #found < limit do
  local last = till == '' and '+inf' or '(' .. till
  local page = redis.call('ZRANGEBYSCORE', P .. 'due:' .. topic, from, last, 'WITHSCORES', 'LIMIT', passed, 100)
  for place = 1, #page, 2 do
    if #found < limit then add(page[place], page[place + 1]) end
  end
  if #page < 200 then break end
  passed = passed + 100
end
return found
"""
)

TRIM_ACKNOWLEDGED = (
    PRELUDE
    + """
-- ARGV: partition, count, the topic and its views
local partition, count = take(), number()
local least, base
for place = 1, count do
  local topic = take()
  if place == 1 then base = topic end
  local groups = redis.pcall('XINFO', 'GROUPS', log_of(topic, partition))
  for _, fields in ipairs(groups.err and {} or groups) do
    for spot = 1, #fields, 2 do
      if fields[spot] == 'last-delivered-id' then
        local position = tonumber(string.match(fields[spot + 1], '^%d+'))
        if not least or position < least then least = position end
      end
    end
  end
end
if not least then return 0 end
return redis.call('XTRIM', log_of(base, partition), 'MINID', text(least + 1) .. '-0')
"""
)
