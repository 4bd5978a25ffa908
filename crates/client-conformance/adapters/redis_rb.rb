# frozen_string_literal: true

# The adapter of redis-rb 4 (Debian's ruby-redis): `redoubt-test judge -- ruby redis_rb.rb`.

require 'json'
require 'redis'
require 'timeout'

class Unsupported < StandardError; end

OUT = Mutex.new

def say(line)
  OUT.synchronize do
    $stdout.puts(JSON.generate(line))
    $stdout.flush
  end
end

# Answers each request by the method of its name.
class Adapter
  def hello(_)
    { library: 'redis-rb', version: Redis::VERSION }
  end

  def connect(request)
    raise Unsupported, 'the library keeps nothing' if request['caching']
    raise Unsupported, 'the library speaks RESP2 alone' if request['protocol'] == 3

    seconds = request['timeout_ms'] / 1000.0
    @options = { timeout: seconds, connect_timeout: seconds }
    authority = request['tls_ca']
    @options.merge!(ssl: true, ssl_params: { ca_file: authority }) if authority
    if request['mode'] == 'cluster'
      scheme = authority ? 'rediss' : 'redis'
      @options.merge!(cluster: request['nodes'].map { |node| "#{scheme}://#{node}" }, replica: request['replicas'])
    else
      sentinels = request['nodes'].map { |node| %i[host port].zip(node.split(':')).to_h }
      @options.merge!(url: "redis://#{request['master']}", sentinels: sentinels, role: :master)
    end
    @client = Redis.new(**@options)
    nil
  end

  def command(request)
    name, *words = as_methods_send(request['args'])
    return @client.call(name, *words) unless %i[blpop brpop].include?(name)

    # Its own method knows that the reply may take longer.
    @client.public_send(name, words[0..-2], timeout: words.last.to_i)
  end

  # The library has EVALSHA and SCRIPT LOAD, and leaves it to its user to put them together.
  def script(request)
    @client.eval(request['source'], request['keys'], request['args'])
  end

  def pipeline(request)
    @client.pipelined { |pipeline| request['commands'].each { |words| pipeline.call(*as_methods_send(words)) } }
  rescue Redis::Cluster::CrossSlotPipeliningError => e
    # Said before anything is sent.
    raise Unsupported, e.message
  end

  def transaction(request)
    @client.multi { |transaction| request['commands'].each { |words| transaction.call(*as_methods_send(words)) } }
  end

  def subscribe(request)
    raise Unsupported, 'the library has no sharded channels' if request['sharded']

    done = Queue.new
    Thread.new { listen(request['channels'], done) }
    Timeout.timeout(5) { done.pop }
    nil
  end

  # The library's call ends with the connection, and its documentation has applications call it again.
  def listen(channels, done)
    Redis.new(**@options).subscribe(*channels) do |on|
      on.subscribe { done.push(true) }
      on.message { |channel, data| say(message: { channel: channel, data: data }) }
    end
  rescue Redis::BaseError
    sleep 0.1
    retry
  end

  # The library finds the key of a command only by a name in small letters.
  def as_methods_send(words)
    [words.first.downcase.to_sym, *words.drop(1)]
  end

  def close(_)
    @client.close
    nil
  end
end

adapter = Adapter.new
$stdin.each_line do |line|
  request = JSON.parse(line)
  begin
    say(id: request['id'], ok: adapter.public_send(request['do'], request))
  rescue Unsupported => e
    say(id: request['id'], unsupported: e.message)
  rescue StandardError => e # Whatever the library raises is its answer.
    say(id: request['id'], error: "#{e.class}: #{e.message}")
  end
end
