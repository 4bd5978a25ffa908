{{- define "redoubt.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "redoubt.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "redoubt.nodes" -}}
{{- mul (int .Values.masters) (add 1 (int .Values.replicasPerMaster)) -}}
{{- end -}}
