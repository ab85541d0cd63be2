-- proxy: four cache servers behind memcached's own proxy; one that is down costs its share of what was cached, and no errors.
--
--   memcached -o proxy_config=routelib,proxy_arg=proxy.lua -l 127.0.0.1 -p 11300
--
-- A key has its server by a hash. Where that server does not answer, the key has another one by another hash, and a third. What is
-- stored there meanwhile lives for a minute at most: when the server is back, old values do not outlive it elsewhere, to be found
-- the next time it is away. Docs: https://docs.memcached.org/features/proxy/
local servers = {
    "127.0.0.1:11301",
    "127.0.0.1:11302",
    "127.0.0.1:11303",
    "127.0.0.1:11304",
}

settings{
    backend_connect_timeout = 1,
    backend_read_timeout = 1,
    backend_retry_timeout = 1,
    -- Failures in a row before a server is left alone for backend_retry_timeout.
    backend_failure_limit = 2,
}

pools{
    first = { backends = servers },
    second = { options = { seed = "second" }, backends = servers },
    third = { options = { seed = "third" }, backends = servers },
}

-- What stores, to the same places, for a minute.
local function stores()
    return route_failover{
        children = {
            "first",
            route_ttl{ ttl = 60, child = "second" },
            route_ttl{ ttl = 60, child = "third" },
        },
        stats = true,
    }
end

routes{
    cmap = { set = stores(), add = stores(), cas = stores(), ms = stores() },
    -- Errors lead on, misses do not.
    default = route_failover{ children = { "first", "second", "third" }, stats = true },
}
