/* The adapter of hiredis: cc -o hiredis hiredis.c -lhiredis -ljansson, then `redoubt-test judge -- ./hiredis`.
 *
 * The library speaks with one server and knows neither clusters nor sentinels. So that it can be judged at all, this
 * program does what its users write around it: a connection for each node, and redirects followed. It keeps no map.
 */
#include <hiredis/hiredis.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_NODES = 16, MOST_REDIRECTS = 5, MOST_WORDS = 64 };

static struct { char address[64]; redisContext *context; } nodes[MOST_NODES];
static size_t node_count;
static struct timeval patience;

/* Why there is no reply. */
static char error[512];

static redisReply *failed(const char *why) {
    snprintf(error, sizeof error, "%s", why);
    return NULL;
}

/* A connection of the library's that broke cannot be used again: it is made anew at the next command. */
static redisReply *dropped(size_t node) {
    redisReply *none = failed(nodes[node].context->errstr);
    redisFree(nodes[node].context);
    nodes[node].context = NULL;
    return none;
}

static size_t node_at(const char *address) {
    size_t node = 0;
    while (node < node_count && strcmp(nodes[node].address, address)) node++;
    if (node == MOST_NODES) return 0;
    if (node == node_count) snprintf(nodes[node_count++].address, sizeof nodes[0].address, "%s", address);
    return node;
}

static int is_connected(size_t node) {
    if (nodes[node].context) return 1;
    char host[64];
    snprintf(host, sizeof host, "%s", nodes[node].address);
    char *port = strrchr(host, ':');
    *port++ = 0;
    nodes[node].context = redisConnectWithTimeout(host, atoi(port), patience);
    if (!nodes[node].context->err && redisSetTimeout(nodes[node].context, patience) == REDIS_OK) return 1;
    dropped(node);
    return 0;
}

/* Commands sent at once, and their replies; none if the connection broke. */
static int run_at(size_t node, json_t *commands, redisReply **replies) {
    size_t place;
    json_t *words;
    if (!is_connected(node)) return 0;
    json_array_foreach(commands, place, words) {
        const char *args[MOST_WORDS];
        size_t lengths[MOST_WORDS], count = json_array_size(words);
        if (count > MOST_WORDS) count = MOST_WORDS;
        for (size_t word = 0; word < count; word++) {
            args[word] = json_string_value(json_array_get(words, word));
            lengths[word] = strlen(args[word]);
        }
        redisAppendCommandArgv(nodes[node].context, (int)count, args, lengths);
    }
    for (place = 0; place < json_array_size(commands); place++) {
        replies[place] = NULL;
        if (redisGetReply(nodes[node].context, (void **)&replies[place]) != REDIS_OK) {
            while (place--) freeReplyObject(replies[place]);
            dropped(node);
            return 0;
        }
    }
    return 1;
}

static redisReply *run(json_t *words) {
    json_t *one = json_pack("[O]", words), *asking = json_pack("[[s]O]", "ASKING", words);
    redisReply *replies[2] = {NULL, NULL}, *reply = NULL;
    size_t node = 0;
    int asks = 0;
    for (int redirects = 0; redirects <= MOST_REDIRECTS; redirects++) {
        if (!run_at(node, asks ? asking : one, replies)) break;
        if (asks) freeReplyObject(replies[0]);
        reply = replies[asks];
        if (reply->type != REDIS_REPLY_ERROR) break;
        asks = !strncmp(reply->str, "ASK ", 4);
        if ((!asks && strncmp(reply->str, "MOVED ", 6)) || redirects == MOST_REDIRECTS) break;
        node = node_at(strrchr(reply->str, ' ') + 1);
        freeReplyObject(reply);
        reply = NULL;
    }
    json_decref(one);
    json_decref(asking);
    return reply;
}

static json_t *shown(const redisReply *reply) {
    json_t *list;
    switch (reply->type) {
    case REDIS_REPLY_INTEGER:
        return json_integer(reply->integer);
    case REDIS_REPLY_NIL:
        return json_null();
    case REDIS_REPLY_ARRAY:
        list = json_array();
        for (size_t place = 0; place < reply->elements; place++) json_array_append_new(list, shown(reply->element[place]));
        return list;
    case REDIS_REPLY_ERROR:
        return json_pack("{s:s}", "error", reply->str);
    default:
        return json_stringn(reply->str, reply->len);
    }
}

static json_t *answer_of(redisReply *reply) {
    if (!reply) return json_pack("{s:s}", "error", error);
    json_t *answer = reply->type == REDIS_REPLY_ERROR ? shown(reply) : json_pack("{s:o}", "ok", shown(reply));
    freeReplyObject(reply);
    return answer;
}

static json_t *script(json_t *request) {
    json_t *keys = json_object_get(request, "keys"), *words = json_array();
    json_array_append_new(words, json_string("EVAL"));
    json_array_append(words, json_object_get(request, "source"));
    json_array_append_new(words, json_sprintf("%zu", json_array_size(keys)));
    json_array_extend(words, keys);
    json_array_extend(words, json_object_get(request, "args"));
    json_t *answer = answer_of(run(words));
    json_decref(words);
    return answer;
}

static json_t *connect_to(json_t *request) {
    const char *refusal = NULL;
    if (strcmp(json_string_value(json_object_get(request, "mode")), "cluster")) refusal = "the library asks no sentinels";
    if (json_is_true(json_object_get(request, "replicas"))) refusal = "the library knows no replicas";
    if (json_is_true(json_object_get(request, "caching"))) refusal = "the library keeps nothing";
    if (json_object_get(request, "tls_ca")) refusal = "Debian's build speaks no TLS";
    if (json_integer_value(json_object_get(request, "protocol")) == 3) refusal = "this version speaks RESP2 alone";
    if (refusal) return json_pack("{s:s}", "unsupported", refusal);
    json_int_t ms = json_integer_value(json_object_get(request, "timeout_ms"));
    patience = (struct timeval){.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    json_t *node;
    size_t place;
    json_array_foreach(json_object_get(request, "nodes"), place, node) node_at(json_string_value(node));
    return json_pack("{s:n}", "ok");
}

static json_t *answer(json_t *request) {
    const char *deed = json_string_value(json_object_get(request, "do"));
    if (!strcmp(deed, "hello"))
        return json_pack("{s:{s:s, s:o}}", "ok", "library", "hiredis", "version",
                         json_sprintf("%d.%d.%d", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH));
    if (!strcmp(deed, "connect")) return connect_to(request);
    if (!strcmp(deed, "command")) return answer_of(run(json_object_get(request, "args")));
    if (!strcmp(deed, "script")) return script(request);
    return json_pack("{s:s}", "unsupported", "only command after command, without a library for clusters");
}

int main(void) {
    char *line = NULL;
    size_t space = 0;
    while (getline(&line, &space, stdin) > 0) {
        json_t *request = json_loads(line, 0, NULL), *told = answer(request);
        json_object_set(told, "id", json_object_get(request, "id"));
        json_dumpf(told, stdout, JSON_COMPACT);
        puts("");
        fflush(stdout);
        json_decref(told);
        json_decref(request);
    }
}
