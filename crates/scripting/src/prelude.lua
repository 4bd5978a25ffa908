-- The sandbox. Scripts see shared tables only through empty proxies whose metatables point to the frozen originals, so
-- that a script cannot change anything for the next one. Errors raised by Rust functions are converted to script errors
-- where the script catches them or ends.
local native, getinfo, allow_deprecated = ...
local error, type, tostring, select, next, pairs, ipairs = error, type, tostring, select, next, pairs, ipairs
local rawset, rawget, rawequal, setmetatable, getmetatable = rawset, rawget, rawequal, setmetatable, getmetatable
local xpcall, pcall, loadstring, unpack, tonumber = xpcall, pcall, loadstring, unpack, tonumber
local getfenv, setfenv, collect = getfenv, setfenv, collectgarbage
local insert, remove, sort, concat = table.insert, table.remove, table.sort, table.concat
local coroutine_resume = coroutine.resume
local find, sub, gsub, rep, byte = string.find, string.sub, string.gsub, string.rep, string.byte
local PRELUDE, READONLY = "=prelude", "Attempt to modify a readonly table"
-- Keeps the chunk names of code compiled by Rust alive, since Lua's compiler may free a chunk name while it is in use.
local NAMES = { "@user_script", "@user_function" }

-- Frozen tables: proxies mapped to the originals. The values are weak too: a table whose globals lead back to
-- its proxy (`_G`) would otherwise never be collected. The proxy's metatable keeps it for as long as the proxy lives.
local frozen = setmetatable({}, { __mode = "kv" })

local function refuse()
  error(READONLY, 2)
end

local function freeze(real)
  local proxy = {}
  frozen[proxy] = real
  return setmetatable(proxy, { __index = real, __newindex = refuse, __metatable = false })
end

local function library(functions)
  local real = {}
  for name, value in pairs(functions) do
    real[name] = value
  end
  return real
end

-- State of the running script: its connection to the server, and its globals.
local current, active

-- `call` for functions of libraries, which may store it between calls. A script gets the host function itself, which is
-- called directly so that errors contain the line number.
local function call(...)
  return current(...)
end

-- The mark as first argument makes the host treat the call as an internal query.
local mark = native.mark

local function protected_call(...)
  local value, failure = current(mark, 0, ...)
  if failure then
    return failure
  end
  return value
end

-- An error of the redis library itself, without a position in the script.
local function complain(text)
  error({ err = "ERR " .. text })
end

local api = native.api(function()
  return current, mark
end)

local function error_reply(...)
  local text = ...
  if select("#", ...) ~= 1 or type(text) ~= "string" then
    return { err = "ERR wrong number or type of arguments" }
  end
  if sub(text, 1, 1) == "-" then
    text = sub(text, 2)
  end
  local stop = find(text, "\0", 1, true)
  if stop then
    text = sub(text, 1, stop - 1)
  end
  local code, message = "ERR", text
  local space = find(text, " ", 1, true)
  if space then
    code, message = sub(text, 1, space - 1), sub(text, space + 1)
  end
  message = gsub(gsub(message, "^[\r\n]+", ""), "[\r\n]+$", "")
  return { err = code .. " " .. message }
end

local function status_reply(...)
  local text = ...
  if select("#", ...) ~= 1 or type(text) ~= "string" then
    return { err = "ERR wrong number or type of arguments" }
  end
  return { ok = text }
end

local redis = {
  LOG_DEBUG = 0,
  LOG_VERBOSE = 1,
  LOG_NOTICE = 2,
  LOG_WARNING = 3,
  REDIS_VERSION = native.version,
  REDIS_VERSION_NUM = native.version_number,
  VALKEY_VERSION = native.version,
  VALKEY_VERSION_NUM = native.version_number,
  SERVER_NAME = native.server_name,
  log = api.log,
}

-- Additional globals at run time, which are not available while a library is loading.
local at_run = library(api.at_run)
at_run.call, at_run.pcall = call, protected_call
at_run.error_reply, at_run.status_reply = error_reply, status_reply
at_run.REPL_NONE, at_run.REPL_AOF, at_run.REPL_ALL = 0, 1, 3
at_run.REPL_SLAVE, at_run.REPL_REPLICA = 2, 2

-- Globals that scripts have and functions do not.
local scripts_only = library(api.scripts_only)
function scripts_only.replicate_commands()
  return true
end

-- Libraries.
local math_real, string_real, table_real = {}, {}, {}
for name, value in pairs(math) do
  math_real[name] = value
end
for name, value in pairs(string) do
  string_real[name] = value
end
for name, value in pairs(table) do
  table_real[name] = value
end
for name, value in pairs(native.math) do
  math_real[name] = value
end
for name, value in pairs(native.string) do
  string_real[name] = value
end
local match_at, substitute = string_real.match_at, string_real.gsub
string_real.match_at = nil

-- Functions that run once per match are called from here, so that their errors keep their form.
function string_real.gsub(text, pattern, with, most)
  if type(with) ~= "function" then
    local made, count = substitute(text, pattern, with, most)
    return made, count
  end
  local from, count, made, length = 0, 0, {}, #tostring(text or "")
  most = tonumber(most) or length + 1
  local anchored = type(pattern) == "string" and byte(pattern) == 94
  local function replace(stop, ...)
    if not stop then
      return nil
    end
    local value = with(...)
    if not value then
      value = sub(text, from + 1, stop)
    elseif type(value) ~= "string" and type(value) ~= "number" then
      error("invalid replacement value (a " .. type(value) .. ")", 3)
    end
    insert(made, value)
    count = count + 1
    return stop
  end
  while count < most do
    local stop = replace(match_at(text, pattern, from))
    if stop and stop > from then
      from = stop
    elseif from < length then
      insert(made, sub(text, from + 1, from + 1))
      from = from + 1
    else
      break
    end
    if anchored then
      break
    end
  end
  insert(made, sub(text, from + 1))
  return concat(made), count
end

-- Checks arguments like the C function, so that errors name the script and not the prelude.
local function expect(name, place, wanted, value, given)
  local is = type(value)
  local fits = is == wanted or wanted == "string" and is == "number" or wanted == "number" and tonumber(value)
  if not fits or place > given then
    is = place > given and "no value" or is
    error("bad argument #" .. place .. " to '" .. name .. "' (" .. wanted .. " expected, got " .. is .. ")", 3)
  end
end

local function expect_value(name, place, given)
  if place > given then
    error("bad argument #" .. place .. " to '" .. name .. "' (value expected)", 3)
  end
end

-- The C function would run for as long as the count requires, without a chance to stop it.
function string_real.rep(...)
  local text, count = ...
  local given = select("#", ...)
  expect("rep", 1, "string", text, given)
  expect("rep", 2, "number", count, given)
  if type(text) == "string" and type(count) == "number" and #text * count > native.max_string() then
    error("resulting string too large", 2)
  end
  if text == "" then
    return ""
  end
  native.look(#tostring(text) * count)
  return rep(text, count)
end

-- Above this number of elements, use Lua instructions, which the hook can interrupt.
local MANY = 10000

function table_real.insert(...)
  local list, place, value = ...
  local given = select("#", ...)
  if type(list) ~= "table" then
    expect("insert", 1, "table", list, given)
  elseif frozen[list] then
    error(READONLY, 0)
  elseif given == 2 then
    rawset(list, #list + 1, place)
    return
  elseif given ~= 3 then
    error("wrong number of arguments to 'insert'", 2)
  end
  expect("insert", 2, "number", place, given)
  local length = #list
  if length - place > MANY then
    for index = length, place, -1 do
      list[index + 1] = list[index]
    end
    list[place] = value
    return
  end
  insert(list, place, value)
end

function table_real.remove(...)
  local list, place = ...
  local given = select("#", ...)
  -- The proxy of a frozen table is empty, so there is nothing to remove.
  expect("remove", 1, "table", list, given)
  if place ~= nil then
    expect("remove", 2, "number", place, given)
  end
  return remove(...)
end

function table_real.sort(...)
  local list, before = ...
  expect("sort", 1, "table", list, select("#", ...))
  if frozen[list] then
    error(READONLY, 0)
  elseif before ~= nil then
    expect("sort", 2, "function", before, 2)
  end
  if #list > MANY then
    local given = before
    before = given and function(one, other)
      return (given(one, other))
    end or function(one, other)
      return one < other
    end
  end
  return sort(list, before)
end

-- Maximum number of values that fit on Lua's stack together with mlua's copy.
local MOST_UNPACKED = 7900

local base = {
  assert = assert,
  error = error,
  gcinfo = gcinfo,
  getmetatable = getmetatable,
  -- The proxy of a frozen table is empty.
  ipairs = ipairs,
  rawequal = rawequal,
  select = select,
  tonumber = tonumber,
  tostring = tostring,
  type = type,
  unpack = function(...)
    local list, first, last = ...
    if type(list) ~= "table" then
      expect("unpack", 1, "table", list, select("#", ...))
    elseif first ~= nil then
      expect("unpack", 2, "number", first, 2)
    end
    if last ~= nil then
      expect("unpack", 3, "number", last, 3)
    end
    -- The C function would overflow its counter.
    local from, to = tonumber(first) or 1, tonumber(last) or type(list) == "table" and #list or 0
    if to - from >= MOST_UNPACKED then
      error("too many results to unpack", 2)
    end
    return unpack(list, first, last)
  end,
  _VERSION = _VERSION,
}

-- A script that catches a server error receives its text.
-- Nesting depth of protected calls. Lua's debug build aborts when its own limit is reached.
local depth, MAX_DEPTH = 0, 196

local function descend()
  if depth >= MAX_DEPTH then
    error("C stack overflow", 0)
  end
  depth = depth + 1
end

local ending = native.ending

-- Converts an error caught by the script. An error that stops the script is not caught: the hook runs only after a number
-- of instructions, all of which the script might catch, and a coroutine has a hook of its own.
local function unwrap(failure)
  if ending() then
    error(failure, 0)
  end
  return type(failure) == "userdata" and native.unwrap(failure) or failure
end

local function caught(ok, ...)
  depth = depth - 1
  if ok then
    return true, ...
  end
  local failure = unwrap((...))
  if type(failure) == "table" and type(failure.err) == "string" then
    return false, failure.err
  end
  return false, failure
end

local function ascend(ok, ...)
  depth = depth - 1
  if not ok then
    unwrap((...))
  end
  return ok, ...
end

function base.xpcall(...)
  local f, handle = ...
  expect_value("xpcall", 2, select("#", ...))
  descend()
  return ascend(xpcall(f, function(failure)
    -- An error of the hook arrives with hooks disabled: nothing would stop a handler of the script.
    if ending() then
      return failure
    end
    return handle(type(failure) == "userdata" and native.unwrap(failure) or failure)
  end))
end

local function resumed(ok, ...)
  if ok then
    return true, ...
  end
  return false, unwrap((...))
end

function base.pcall(...)
  expect_value("pcall", 1, select("#", ...))
  descend()
  return caught(pcall(...))
end

function base.rawset(...)
  local list, key = ...
  local given = select("#", ...)
  expect("rawset", 1, "table", list, given)
  expect_value("rawset", 2, given)
  expect_value("rawset", 3, given)
  if frozen[list] then
    error(READONLY, 0)
  end
  return rawset(...)
end

function base.rawget(...)
  local list, key = ...
  local given = select("#", ...)
  expect("rawget", 1, "table", list, given)
  expect_value("rawget", 2, given)
  return rawget(frozen[list] or list, key)
end

function base.setmetatable(...)
  local list, meta = ...
  local given = select("#", ...)
  expect("setmetatable", 1, "table", list, given)
  if frozen[list] then
    error(READONLY, 0)
  elseif given < 2 or meta ~= nil and type(meta) ~= "table" then
    error("bad argument #2 to 'setmetatable' (nil or table expected)", 2)
  end
  -- Lua's own function refuses protected metatables, too, but its error would name this line.
  local done, refused = pcall(setmetatable, list, meta)
  if not done then
    error(refused, 2)
  end
  return list
end

function base.next(...)
  local list, key = ...
  expect("next", 1, "table", list, select("#", ...))
  return next(frozen[list] or list, key)
end

function base.pairs(...)
  local list = ...
  expect("pairs", 1, "table", list, select("#", ...))
  local real = frozen[list]
  if not real then
    return pairs(list)
  end
  local key
  return function()
    local value
    key, value = next(real, key)
    return key, value
  end
end

-- Options whose effect is limited to the script.
local COLLECTOR = { collect = true, count = true, step = true }
local COLLECTOR_OF_THE_SERVER = { stop = 0, restart = 0, setpause = 200, setstepmul = 200 }

function base.collectgarbage(what, ...)
  if what == nil or COLLECTOR[what] then
    return collect(what, ...)
  end
  local standing = COLLECTOR_OF_THE_SERVER[what]
  if not standing then
    error("bad argument #1 to 'collectgarbage' (invalid option '" .. tostring(what) .. "')", 2)
  end
  return standing
end

-- Accepts text only: crafted bytecode could corrupt the process.
function base.loadstring(text, name)
  if type(text) == "number" then
    text = tostring(text)
  end
  if type(text) ~= "string" then
    error("bad argument #1 to 'loadstring' (string expected, got " .. (text == nil and "no value" or type(text)) .. ")", 2)
  end
  if byte(text) == 27 then
    return nil, "attempt to load a binary chunk"
  end
  -- Keep the chunk name alive during compilation: Lua's compiler may free it while it is in use.
  local kept = gsub(name or text, "%z.*", "")
  local chunk, failure = loadstring(text, kept)
  if chunk then
    setfenv(chunk, active)
  end
  return chunk, failure
end

function base.load(...)
  local reader, name = ...
  expect("load", 1, "function", reader, select("#", ...))
  local pieces, last = {}, nil
  local function read()
    repeat
      last = reader()
      pieces[#pieces + 1] = (type(last) == "string" or type(last) == "number") and last or nil
    until type(last) ~= "string" and type(last) ~= "number" or last == ""
  end
  -- An error of the reader function is raised again.
  local ok, failure = base.pcall(read)
  if not ok then
    return nil, failure
  elseif last ~= nil and last ~= "" then
    return nil, "reader function must return a string"
  end
  local text = concat(pieces)
  if byte(text) == 27 then
    return nil, "attempt to load a binary chunk"
  end
  local kept = gsub(name or "=(load)", "%z.*", "")
  local chunk, failure = loadstring(text, kept)
  if chunk then
    setfenv(chunk, active)
  end
  return chunk, failure
end

base.string = freeze(string_real)
base.math = freeze(math_real)
base.table = freeze(table_real)
base.coroutine = freeze({
  create = coroutine.create,
  resume = function(...)
    if type((...)) ~= "thread" then
      error("bad argument #1 to 'resume' (coroutine expected)", 2)
    end
    return resumed(coroutine_resume(...))
  end,
  running = coroutine.running,
  status = coroutine.status,
  wrap = coroutine.wrap,
  yield = coroutine.yield,
})
base.os = freeze({ clock = os.clock })
base.bit = freeze(library(native.bit))
base.struct = freeze(library(native.struct))
base.cmsgpack = freeze(library(native.cmsgpack))

local function new_json(shared)
  local json = library(native.new_json(shared))
  json.new = function()
    return new_json(false)
  end
  return json
end
base.cjson = freeze(new_json(true))

-- String methods are looked up in this table; scripts cannot reach it through a string's metatable.
local of_strings = getmetatable("")
of_strings.__index = string_real
of_strings.__metatable = freeze({ __index = base.string })

-- Access to an undefined global is an error.
local strict = {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
  __metatable = false,
}

-- Creates empty globals for scripts or functions: returns the proxy and the table behind it.
local function world()
  local real = setmetatable({}, strict)
  return freeze(real), real
end

-- Fills globals for run time: `own` is added to the common ones. Returns their `redis` table.
local function furnish(proxy, real, own)
  for name, value in pairs(base) do
    real[name] = value
  end
  local redis_real = library(redis)
  for name, value in pairs(at_run) do
    redis_real[name] = value
  end
  for name, value in pairs(own) do
    redis_real[name] = value
  end
  real.redis = freeze(redis_real)
  real.server = real.redis
  real._G = proxy
  if allow_deprecated then
    -- Only the script's own environment may be read and changed.
    function real.getfenv(of)
      local env = getfenv(type(of) == "function" and of or (of or 1) == 0 and 2 or (of or 1) + 1)
      return (env == proxy or not frozen[env] and env ~= _G) and env or proxy
    end
    function real.setfenv(of, env)
      if of == 0 or type(env) ~= "table" then
        error("'setfenv' cannot change environment of given object", 2)
      end
      local target = type(of) == "number" and of + 1 or of
      if getfenv(target) == _G then
        error("'setfenv' cannot change environment of given object", 2)
      end
      return setfenv(target, env)
    end
  end
  return redis_real
end

-- The `redis` table of each library, by environment.
local redis_of = setmetatable({}, { __mode = "k" })

-- The globals of a library: while it loads, only the functions needed to register.
local function library_world()
  local registered, loading = {}, true

  local function register(name, callback, description, flags)
    if type(name) ~= "string" then
      complain("first argument to server.register_function must be a string")
    end
    if type(callback) ~= "function" then
      complain("second argument to server.register_function must be a function")
    end
    insert(registered, { name = name, callback = callback, description = description, flags = flags or {} })
  end

  local function register_named(options)
    local name, callback, description, flags
    for key, value in pairs(options) do
      if key == "function_name" then
        name = (type(value) == "string" or type(value) == "number") and tostring(value)
          or complain("function_name argument given to server.register_function must be a string")
      elseif key == "description" then
        description = type(value) == "string" and value
          or complain("description argument given to server.register_function must be a string")
      elseif key == "callback" then
        callback = type(value) == "function" and value
          or complain("callback argument given to server.register_function must be a function")
      elseif key == "flags" then
        flags = type(value) == "table" and value
          or complain("flags argument to server.register_function must be a table representing function flags")
      else
        complain("unknown argument given to server.register_function")
      end
    end
    if not name then
      complain("server.register_function must get a function name argument")
    end
    if not callback then
      complain("server.register_function must get a callback argument")
    end
    for _, flag in ipairs(flags or {}) do
      if not native.is_flag(flag) then
        complain("unknown flag given")
      end
    end
    register(name, callback, description, flags)
  end

  local function register_function(...)
    local count = select("#", ...)
    if not loading then
      complain("server.register_function can only be called on FUNCTION LOAD command")
    end
    if count < 1 or count > 2 then
      complain("wrong number of arguments to server.register_function")
    end
    local first, second = ...
    if count == 1 then
      if type(first) ~= "table" then
        complain("calling server.register_function with a single argument is only applicable to Lua table (representing named arguments).")
      end
      return register_named(first)
    end
    register(type(first) == "number" and tostring(first) or first, second)
  end

  local env, real = world()
  local at_load = library(redis)
  at_load.register_function = register_function
  real.redis = freeze(setmetatable(at_load, strict))
  real.server = real.redis
  local function loaded()
    loading = false
    redis_of[env] = furnish(env, real, {})
  end
  return { env = env, registered = registered, loaded = loaded }
end

local for_scripts, scripts_real = world()
local scripts_redis = furnish(for_scripts, scripts_real, scripts_only)

-- Errors contain the position in the script, whatever function it called.
local function handler(failure)
  local level = 2
  local info = getinfo(level, "nSl")
  while info and (info.what == "C" or info.what == "tail" or info.source == PRELUDE) do
    level = level + 1
    info = getinfo(level, "nSl")
  end
  if type(failure) == "userdata" then
    failure = native.unwrap(failure)
  end
  if type(failure) ~= "table" or frozen[failure] then
    -- A level above the script itself has no position that the script knows.
    failure = { err = "ERR " .. gsub(tostring(failure), "^prelude:%d+: ", "") }
  end
  if info then
    rawset(failure, "source", info.source)
    rawset(failure, "line", info.currentline)
  end
  return failure
end

-- Runs a script with its own state.
local function run(host, script, keys, args)
  current, active, scripts_redis.call, depth = host, for_scripts, host, 0
  scripts_real.KEYS, scripts_real.ARGV = keys, args
  return xpcall(script, handler)
end

local function run_function(host, env, callback, keys, args)
  current, active, depth = host, env, 0
  redis_of[env].call = host
  return xpcall(function()
    return callback(keys, args)
  end, handler)
end

-- Runs a library's text, which registers its functions.
local function load_library(library, chunk)
  current, active, depth = nil, library.env, 0
  local ok, failure = xpcall(chunk, handler)
  library.loaded()
  return ok, ok and library.registered or failure
end

return {
  run = run,
  run_function = run_function,
  load_library = load_library,
  library_world = library_world,
  env = for_scripts,
  names = NAMES,
}
